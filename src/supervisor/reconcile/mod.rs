//! Which step brings a daemon closer to what is desired: pure functions of what was observed.

pub(crate) mod daemon;
pub(crate) mod layout;
pub(crate) mod remedy;
pub(crate) mod wedge;
