//! The control daemon's text: written, read, and run.
