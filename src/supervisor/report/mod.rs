//! Reports about a daemon: conditions, diagnoses and events.

pub(crate) mod blocker;
pub(crate) mod conditions;
pub(crate) mod diagnosis;
pub(crate) mod event_detector;
pub mod event_queue;
pub(crate) mod recent;
pub(crate) mod server_log_events;
