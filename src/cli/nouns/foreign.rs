use super::Noun;
use crate::cli::output::{ListField, TableCell};
use crate::service::daemons::foreign::ForeignDaemonView;

type Field = ListField<ForeignDaemonView>;

/// Control daemons that the server does not own.
pub(in crate::cli) static FOREIGN: Noun<ForeignDaemonView> = Noun {
    candidate: |daemon| Some((daemon.id.to_string(), daemon.pipe_directory.clone().unwrap_or_default())),
    has_pages: false,
    ..Noun::new(
        ["foreign", "foreign control daemons", "/api/v1/foreign-daemons"],
        |daemon| daemon.id.to_string(),
        &[
            Field::both("PROCESS", "Process", |daemon| daemon.id.to_string().into()),
            Field::column("UID", |daemon| TableCell::optional(daemon.uid)).rank(3),
            Field::detail("User", |daemon| TableCell::optional(daemon.uid.map(|uid| format!("uid {uid}")))),
            Field::detail("Options", |daemon| TableCell::joined(&daemon.options)),
            Field::column("GPUS", |daemon| TableCell::optional(daemon.gpus.as_ref().map(Vec::len))).rank(2),
            Field::detail("GPUs", |daemon| TableCell::joined(daemon.gpus.iter().flatten())),
            Field::column("CLIENTS", |daemon| {
                TableCell::optional(daemon.effective.as_ref().map(|_| daemon.clients.len()))
            })
            .rank(4),
            Field::detail("Clients", |daemon| daemon.clients.len().to_string().into()),
            Field::both("PIPE DIRECTORY", "Pipe directory", |daemon| {
                TableCell::optional(daemon.pipe_directory.as_deref())
            })
            .cut()
            .rank(1),
            Field::detail("Log directory", |daemon| TableCell::optional(daemon.log_directory.as_deref())),
            Field::column("ORIGIN", |daemon| daemon.owner.words().into()).cut().rank(5),
            Field::detail("Origin", |daemon| {
                TableCell::optional(Some(daemon.owner.words()).filter(|words| !words.is_empty()))
            }),
            Field::detail("What to do", |daemon| daemon.remedy.as_str().into()),
            Field::both("ADOPTION", "Adoption", |daemon| adoption(daemon).into()).cut(),
            Field::detail("Once adopted", |daemon| TableCell::joined(&daemon.adoption.managed.notes)),
            Field::detail("Unreadable", |daemon| TableCell::optional(daemon.unreadable.as_deref())),
            Field::wide("OPTIONS", |daemon| TableCell::joined(&daemon.options)),
            Field::wide("UUIDS", |daemon| TableCell::joined(daemon.gpus.iter().flatten())),
        ],
    )
};

fn adoption(daemon: &ForeignDaemonView) -> String {
    match (&daemon.adoption.managed, &daemon.adoption.observed) {
        _ if daemon.lost => "ours: daemon adopt --all-ours".to_owned(),
        (managed, _) if managed.possible => "possible".to_owned(),
        (_, observed) if observed.possible => "observe only".to_owned(),
        (_, observed) => observed.reason.clone().unwrap_or_default(),
    }
}
