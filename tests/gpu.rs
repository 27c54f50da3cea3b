//! On real hardware.
