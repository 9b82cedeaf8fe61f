//! What breaks, and what happens then.

mod embedded;
