//! The bytes of an HTTP/1 connection, looked at once on their way to hyper.
//!
//! hyper repairs what a gateway must refuse: a bare LF as the end of a line, `Content-Length` beside `Transfer-Encoding`, a length said twice, a
//! fragment in the target. By the time it hands a request over, nothing of that can be seen. So heads are looked at before: one search for line
//! ends, and a closer look at the few lines that say where a body ends. To know where the next head begins, bodies are counted off. What is
//! accepted here has one reading only, and hyper's is the same; a line that is not is cut short before its end, and hyper, given [`POISON`] in
//! its place, answers `400` by itself and closes, after everything that came before has been answered.

/// What hyper is given instead of the end of a line that is refused: no head and no chunk may hold the first byte, and the rest is the end of a
/// head, without which hyper does not look again at one that it has begun to read.
pub(super) const POISON: &[u8] = b"\0\r\n\r\n";
/// Bytes of a line that are kept when a read ends inside it: more than any line needs that is looked at.
const KEPT: usize = 256;

/// Where in the conversation the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The request line, or an empty line before it.
    First,
    Fields,
    /// So many bytes of a body or a chunk.
    Counted(u64),
    ChunkSize,
    /// So many bytes of a chunk.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// Something was refused: nothing more is passed.
    Refused,
}

/// How a head says where its body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Unsaid,
    Length(u64),
    Chunked,
}

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(super) struct Heads {
    part: Part,
    framing: Framing,
    /// The beginning of a line that has not ended yet, and how long it is in all.
    line: Vec<u8>,
    line_length: usize,
    last: u8,
}

impl Heads {
    pub(super) fn new() -> Self {
        Self {
            part: Part::First,
            framing: Framing::Unsaid,
            line: Vec::new(),
            line_length: 0,
            last: 0,
        }
    }

    /// Whether something was refused.
    pub(super) fn refused(&self) -> bool {
        self.part == Part::Refused
    }

    /// Whether the last byte was the end of a request, or nothing has come yet.
    pub(super) fn at_rest(&self) -> bool {
        self.part == Part::First && self.line_length == 0
    }

    /// How many of these bytes may be passed on. If that is not all, the next one is refused, and so is everything after it.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match self.part {
                Part::Refused => return at,
                Part::Counted(left) | Part::Chunk(left) => at += self.count_off(left, rest.len()),
                Part::First | Part::Fields | Part::ChunkSize | Part::ChunkEnd | Part::Trailers => {
                    let Some(end) = memchr::memchr(b'\n', rest) else {
                        self.keep(rest);
                        return bytes.len();
                    };
                    if !self.end_line(&rest[..end]) {
                        self.part = Part::Refused;
                        return at + end;
                    }
                    at += end + 1;
                }
            }
        }
        at
    }

    /// Takes bytes of a body off what is left of it; answers how many.
    fn count_off(&mut self, left: u64, here: usize) -> usize {
        let taken = usize::try_from(left).map_or(here, |left| left.min(here));
        let left = left - taken as u64;
        self.part = match self.part {
            Part::Counted(_) if left == 0 => Part::First,
            Part::Counted(_) => Part::Counted(left),
            _ if left == 0 => Part::ChunkEnd,
            _ => Part::Chunk(left),
        };
        taken
    }

    /// Keeps the beginning of a line.
    fn keep(&mut self, bytes: &[u8]) {
        let free = KEPT.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(free)]);
        self.line_length = self.line_length.saturating_add(bytes.len());
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// A line is whole, up to its LF. False: it is refused.
    fn end_line(&mut self, end: &[u8]) -> bool {
        if self.line_length == 0 {
            return end
                .split_last()
                .is_some_and(|(last, line)| *last == b'\r' && self.read(line, line.len()));
        }
        self.keep(end);
        let line = std::mem::take(&mut self.line);
        let length = std::mem::take(&mut self.line_length) - 1;
        self.last == b'\r' && self.read(&line[..line.len().min(length)], length)
    }

    /// Reads a line of this length, of which at least the first [`KEPT`] bytes are here. False: it is refused.
    fn read(&mut self, line: &[u8], length: usize) -> bool {
        match self.part {
            Part::First => {
                if !line.is_empty() {
                    self.part = Part::Fields;
                    self.framing = Framing::Unsaid;
                }
                !line.contains(&b'#') // hyper would drop a fragment silently
            }
            Part::Fields if line.is_empty() => {
                self.part = match self.framing {
                    Framing::Unsaid | Framing::Length(0) => Part::First,
                    Framing::Length(length) => Part::Counted(length),
                    Framing::Chunked => Part::ChunkSize,
                };
                true
            }
            Part::Fields => self.read_field(line, length),
            Part::ChunkSize => {
                let size = if line.len() == length { chunk_size(line) } else { None };
                match size {
                    Some(0) => self.part = Part::Trailers,
                    Some(size) => self.part = Part::Chunk(size),
                    None => {}
                }
                size.is_some()
            }
            Part::ChunkEnd => {
                self.part = Part::ChunkSize;
                line.is_empty()
            }
            Part::Trailers => {
                if line.is_empty() {
                    self.part = Part::First;
                }
                true
            }
            Part::Counted(_) | Part::Chunk(_) | Part::Refused => false,
        }
    }

    /// Only fields that say where the body ends are of interest, and a line that continues another.
    fn read_field(&mut self, line: &[u8], length: usize) -> bool {
        let framing = match line.first() {
            Some(b' ' | b'\t') => return false,
            Some(b'c' | b'C') => value_of(line, b"content-length").map(|value| digits(value).map(Framing::Length)),
            Some(b't' | b'T') => {
                value_of(line, b"transfer-encoding").map(|value| value.eq_ignore_ascii_case(b"chunked").then_some(Framing::Chunked))
            }
            _ => None,
        };
        match framing {
            None => true,
            Some(Some(framing)) if self.framing == Framing::Unsaid && line.len() == length => {
                self.framing = framing;
                true
            }
            Some(_) => false,
        }
    }
}

/// The value of a field, when it has this name.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = line.split_at_checked(name.len())?;
    let (b':', value) = rest.split_first()? else { return None };
    head.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// The size of a chunk: hexadecimal, and perhaps an extension, which nobody looks at.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let length = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extension) = line.split_at(length);
    if !extension.is_empty() && !extension.trim_ascii_start().starts_with(b";") {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is passed of these bytes, in reads of this size.
    fn passed(bytes: &[u8], read: usize) -> usize {
        let mut heads = Heads::new();
        let mut passed = 0;
        for part in bytes.chunks(read) {
            let here = heads.pass(part);
            passed += here;
            if here < part.len() {
                break;
            }
        }
        passed
    }

    fn whole(text: &str) -> bool {
        passed(text.as_bytes(), usize::MAX) == text.len()
    }

    #[test]
    fn what_has_one_reading_is_passed() {
        for fine in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-LENGTH:\t3 \r\n\r\n\n\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\nA ;x=\"y\"\r\n\n123456789\r\n0\r\nT: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            assert!(whole(fine), "{fine:?}");
        }
    }

    #[test]
    fn what_has_two_readings_is_not() {
        for odd in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "GET /#b HTTP/1.1\r\nHost: a\r\n\r\n",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: \r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nabcd\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: 1\n\r\n",
        ] {
            assert!(!whole(odd), "{odd:?}");
        }
        let far = format!("POST / HTTP/1.1\r\nContent-Length: {}3\r\n\r\n", " ".repeat(KEPT));
        assert!(passed(far.as_bytes(), 7) < far.len(), "a length further off than is kept of a line");
    }

    #[test]
    fn a_long_line_costs_no_memory() {
        let mut heads = Heads::new();
        heads.pass(b"GET / HTTP/1.1\r\nX: ");
        for _ in 0..1000 {
            assert_eq!(heads.pass(&[b'x'; 1000]), 1000);
        }
        assert!(heads.line.capacity() <= 2 * KEPT);
        assert_eq!(heads.pass(b"\r\n\r\n"), 4);
    }

    proptest! {
        /// Where a read ends makes no difference.
        #[test]
        fn reads_of_any_size_see_the_same(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "GET / HTTP/1.1\r\n", "\r\n", "\n", "\r", "Host: a\r\n", "Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n", "4\r\n", "abcd", "0\r\n", " x", "\r\n\r\n", "4;y\r\n",
            ]), 0..14),
            read in 1_usize..20,
        ) {
            let text = pieces.concat();
            prop_assert_eq!(passed(text.as_bytes(), read), passed(text.as_bytes(), usize::MAX));
        }
    }
}
