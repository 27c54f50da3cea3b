//! Reports about a daemon: conditions, diagnoses and events.

pub(crate) mod conditions;
pub(crate) mod event_detector;
pub mod event_queue;
