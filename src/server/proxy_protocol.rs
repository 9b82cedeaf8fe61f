//! The PROXY protocol: a load balancer that passes bytes on says first whose they are, in one line (v1) or in binary (v2).
//!
//! Asked only of the networks that settings list, and from them it must come. Exactly the header is taken from the socket, so that the first
//! byte after it is the client's own, be it TLS or HTTP. Framing is ours and has a bound; what is inside is read by `ppp`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ppp::{v1, v2};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// How a binary header begins.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The part of a binary header that says how long the rest is.
const FIXED: usize = 16;
/// How a line begins.
const WORD: &[u8] = b"PROXY ";
/// A line at most, its end included.
const MAX_LINE: usize = 107;
/// A binary header at most.
const MAX_BINARY: usize = 4096;

/// A header as far as it has come.
#[derive(Debug, Default)]
pub struct Reader {
    seen: Vec<u8>,
    over: bool,
}

/// The bytes are no header that may be believed. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Who the client is.
    Client(SocketAddr),
    /// It speaks for itself, or does not know: the peer is whoever it is.
    Nobody,
}

impl Reader {
    /// Nothing has come yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes as many of these bytes as belong to the header; the rest is the client's. What it says, when it is complete.
    ///
    /// # Errors
    /// It can be no header any more, whatever comes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Said>), Malformed> {
        let before = self.seen.len();
        for byte in bytes {
            self.seen.push(*byte);
            if let Some(said) = self.complete()? {
                return Ok((self.seen.len() - before, Some(said)));
            }
        }
        Ok((bytes.len(), None))
    }

    /// What the header says, once its last byte has come.
    fn complete(&mut self) -> Result<Option<Said>, Malformed> {
        let seen = self.seen.as_slice();
        let begins = |beginning: &[u8]| seen.starts_with(beginning) || beginning.starts_with(seen);
        if self.over || seen.len() > MAX_BINARY {
            return Err(Malformed);
        }
        let said = if begins(WORD) {
            if !seen.ends_with(b"\r\n") {
                return if seen.len() < MAX_LINE { Ok(None) } else { Err(Malformed) };
            }
            read_line(seen)?
        } else if begins(SIGNATURE) {
            let Some(length) = seen.get(FIXED - 2..FIXED) else {
                return Ok(None);
            };
            let length = FIXED + length.iter().fold(0, |sum, byte| sum * 256 + usize::from(*byte));
            if length > MAX_BINARY {
                return Err(Malformed);
            }
            if seen.len() < length {
                return Ok(None);
            }
            read_binary(seen)?
        } else {
            return Err(Malformed);
        };
        self.over = true;
        Ok(Some(said))
    }
}

fn read_line(line: &[u8]) -> Result<Said, Malformed> {
    let line = std::str::from_utf8(line).map_err(|_| Malformed)?;
    let header = v1::Header::try_from(line).map_err(|_| Malformed)?;
    Ok(match header.addresses {
        v1::Addresses::Tcp4(named) => client(named.source_address, named.source_port),
        v1::Addresses::Tcp6(named) => client(named.source_address, named.source_port),
        v1::Addresses::Unknown => Said::Nobody,
    })
}

fn read_binary(header: &[u8]) -> Result<Said, Malformed> {
    let header = v2::Header::try_from(header).map_err(|_| Malformed)?;
    if header.command == v2::Command::Local {
        return Ok(Said::Nobody);
    }
    Ok(match header.addresses {
        v2::Addresses::IPv4(named) => client(named.source_address, named.source_port),
        v2::Addresses::IPv6(named) => client(named.source_address, named.source_port),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => Said::Nobody,
    })
}

fn client(address: impl Into<IpAddr>, port: u16) -> Said {
    Said::Client(SocketAddr::new(address.into().to_canonical(), port))
}

/// Reads a header and not a byte more. There is no time limit in here: the caller has one.
pub(super) async fn read(io: &mut TcpStream) -> io::Result<Said> {
    let mut reader = Reader::new();
    let mut chunk = [0; 256];
    loop {
        // Everything that was looked at and belongs to the header is taken before the next look: this cannot spin.
        let there = io.peek(&mut chunk).await?;
        if there == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let fed = reader.feed(chunk.get(..there).unwrap_or_default());
        let (taken, said) = fed.map_err(|Malformed| io::Error::new(io::ErrorKind::InvalidData, "this is no PROXY header"))?;
        io.read_exact(chunk.get_mut(..taken).unwrap_or_default()).await?;
        if let Some(said) = said {
            return Ok(said);
        }
    }
}
