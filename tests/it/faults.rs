//! What happens when the things waitgate leans on break.

mod behind;
mod crowd;
mod drain;
mod embedded;
mod gateways;
mod presence;
mod sockets;
mod store;
mod store_loss;
mod streams;
