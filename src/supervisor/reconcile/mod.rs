//! The next step that brings a daemon closer to its desired state: pure functions of the observed state.

pub(crate) mod daemon;
pub(crate) mod diagnosis;
pub(crate) mod layout;
pub(crate) mod wedge;
