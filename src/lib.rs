//! waitgate: a virtual waiting-room edge gateway.
//!
//! Twenty thousand people want a hundred phones, so the product is a cheap, honest "no" and a careful "yes".
//!
//! # The life of a request
//!
//! accept → identify → limit → find the room → sold out? → admission? → claim | forward | join and wait.
//! [`gateway`] reads like that line. Everything before the last step runs in this process's own memory.
//!
//! # Words
//!
//! *visitor* (whoever asks), *room* (one waiting room, guarding one sale), *ticket* (signed proof of a place in line), *place* (the number
//! handed out on joining; lower goes first; never changes), *position* (how many live visitors are ahead), *frontier* (the highest place
//! called so far), *called* (let in, has not come yet), *admission* (the JWT that proves somebody was let in), *session* (an admitted visitor
//! being active), *no-show* (called, never came), *claim* (asking for units), *reservation* (units held until paid), *sold out* (sold, nothing
//! can return), *all held* (may return), *upstream*, *operator*.
//!
//! # The rule of direction
//!
//! The modules below are in dependency order: a module may use only those listed above it. A test reads the source and holds it true.

// Foundations.
pub mod clock;
pub mod config;
pub mod fault;
pub mod telemetry;
pub mod body;
pub mod stop;
pub mod access;
pub mod store;
// The steps, in the order a request meets them.
pub mod intake;
pub mod visitor;
pub mod limit;
pub mod room;
pub mod token;
pub mod peers;
pub mod queue;
pub mod claim;
pub mod response;
pub mod waiting;
pub mod upstream;
// What puts them together.
pub mod gateway;
pub mod admission;
pub mod ops;
pub mod server;
pub mod serve;
pub mod shop;
pub mod crowd;
pub mod demo;
pub mod rehearse;
pub mod doctor;
pub mod cli;
