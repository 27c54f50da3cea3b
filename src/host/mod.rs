//! What the operating system tells about processes and about itself.
