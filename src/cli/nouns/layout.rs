use super::Noun;
use crate::cli::output::{ListField, TableCell, age};
use crate::service::layouts::LayoutView;

type Field = ListField<LayoutView>;

/// Layouts. Their details are a document, or those of one version: `layout get` makes both.
pub(in crate::cli) static LAYOUT: Noun<LayoutView> = Noun {
    candidate: |layout| Some((layout.newest.name.to_string(), format!("version {}", layout.newest.version))),
    ..Noun::new(
        ["layout", "layouts", "/api/v1/layouts"],
        |layout| layout.newest.name.to_string(),
        &[
            Field::column("LAYOUT", |layout| layout.newest.name.as_str().into()),
            Field::column("VERSION", |layout| layout.newest.version.to_string().into()),
            Field::column("ENFORCEMENT", |layout| layout.newest.layout.enforcement.as_str().into()).rank(3),
            Field::column("PARTITIONS", |layout| {
                layout.newest.layout.partitions().count().to_string().into()
            })
            .rank(2),
            Field::column("DAEMONS", |layout| TableCell::joined(&layout.daemons)).rank(1),
            Field::column("AGE", |layout| age(layout.newest.created_at).into()).rank(5),
            Field::column("NOTE", |layout| {
                TableCell::optional(layout.newest.note.as_ref().map(|note| note.replace('\n', " ")))
            })
            .cut()
            .rank(4),
            Field::wide("AUTHOR", |layout| layout.newest.author.as_str().into()),
        ],
    )
};
