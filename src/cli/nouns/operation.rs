use super::{LATEST, Noun};
use crate::cli::output::{ListField, TableCell, age};
use crate::domain::operation::Operation;

type Field = ListField<Operation>;

/// Operations.
pub(in crate::cli) static OPERATION: Noun<Operation> = Noun {
    candidate: |operation| {
        let about = format!("{}, {}", operation.request.kind(), operation.state.as_str());
        Some((operation.id.to_string(), about))
    },
    candidates: LATEST,
    ..Noun::new(
        ["operation", "operations", "/api/v1/operations"],
        |operation| operation.id.to_string(),
        &[
            Field::both("OPERATION", "Operation", |operation| operation.id.to_string().into()),
            Field::both("KIND", "Kind", |operation| operation.request.kind().into()).rank(1),
            Field::both("DAEMONS", "Daemons", |operation| TableCell::joined(&operation.daemons))
                .cut()
                .rank(2),
            Field::both("STATE", "State", |operation| TableCell::state(operation.state.as_str())),
            Field::both("AGE", "Age", |operation| age(operation.created_at).into()).rank(4),
            Field::rows(|operation| {
                let steps = operation.steps.iter();
                steps
                    .map(|step| {
                        ("Step", format!("{}: {}", step.name, step.outcome.as_deref().unwrap_or("running")))
                    })
                    .collect()
            }),
            Field::both("ERROR", "Error", |operation| TableCell::optional(operation.error.as_deref()))
                .cut()
                .rank(3)
                .if_known(),
        ],
    )
};
