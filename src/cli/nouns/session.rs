use super::Noun;
use crate::cli::output::{ListField, age};
use crate::domain::rfc3339;
use crate::service::access::sessions::SessionView;

type Field = ListField<SessionView>;

/// Sessions of browsers.
pub(in crate::cli) static SESSION: Noun<SessionView> = Noun {
    has_pages: false,
    ..Noun::new(
        ["session", "sessions", "/api/v1/sessions"],
        |session| session.subject.clone(),
        &[
            Field::column("USER", |session| session.subject.as_str().into()).cut(),
            Field::column("GRANT", |session| session.grant.to_string().into()),
            Field::column("AGE", |session| age(session.created_at).into()).rank(3),
            Field::column("LAST USED", |session| format!("{} ago", age(session.last_used_at)).into()).rank(1),
            Field::column("ENDS UNUSED", |session| rfc3339::format(session.ends_at).into()).rank(2),
        ],
    )
};
