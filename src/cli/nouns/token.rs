use super::Noun;
use crate::cli::output::{ListField, TableCell, age};
use crate::domain::rfc3339;
use crate::domain::token::TokenState;
use crate::service::access::tokens::TokenView;

type Field = ListField<TokenView>;

/// Tokens; a completion offers the active ones.
pub(in crate::cli) static TOKEN: Noun<TokenView> = Noun {
    candidate: |token| {
        let about = format!("{}, {}", token.name, token.grant);
        (token.state == TokenState::Active).then(|| (token.id.to_string(), about))
    },
    ..Noun::new(
        ["token", "tokens", "/api/v1/tokens"],
        |token| token.id.to_string(),
        &[
            Field::column("TOKEN", |token| token.id.to_string().into()),
            Field::column("NAME", |token| token.name.as_str().into()),
            Field::column("GRANT", |token| token.grant.to_string().into()).rank(1),
            Field::column("STATE", |token| TableCell::state(token.state.as_str())),
            Field::column("EXPIRES", |token| TableCell::optional(token.expires_at.map(rfc3339::format)))
                .rank(2),
            Field::column("LAST USED", |token| {
                TableCell::optional(token.last_used_at.map(|at| format!("{} ago", age(at))))
            })
            .rank(3),
            Field::column("AGE", |token| age(token.created_at).into()).rank(5),
            Field::column("CREATED BY", |token| token.created_by.as_str().into()).cut().rank(4),
        ],
    )
};
