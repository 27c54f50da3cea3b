//! The control daemon's text and process: sessions, starting, finding, stopping.

mod doubles;
mod host;
mod launchers;
mod processes;
mod sessions;
