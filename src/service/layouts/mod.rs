//! Layouts: written, read, forgotten, and what a daemon may hold of them.

mod of_daemon;

pub(super) use of_daemon::fit_layout;
