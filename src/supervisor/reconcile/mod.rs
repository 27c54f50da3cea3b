//! Which step brings a daemon closer to what is desired: pure functions of what was observed.

pub(crate) mod daemon;
pub(crate) mod partitions;
pub(crate) mod percentage_layout;
pub(crate) mod remedy;
pub(crate) mod wedge;
