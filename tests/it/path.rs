//! The path of a request, a file per step.

mod access;
mod claim;
mod corpus;
mod h2_floods;
mod h2_frames;
mod headers;
mod limit;
mod login;
mod proxy_protocol;
mod room;
mod rotation;
mod server;
mod slow;
mod sold_out;
mod spellings;
mod strict;
mod tls;
mod token;
mod upgrade;
mod upstream;
mod upstream_h2;
mod upstream_tls;
mod upstreams;
mod wait;
mod waiting;
mod ws_frames;
