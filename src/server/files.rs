//! The machine's limit on open files: each connection is one, and a process that has used them up can accept nobody.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that are not visitors' connections, at most: the store's, the backends', the operators', our own.
const OTHERS: usize = 500;

/// Raises this process's limit on open files as far as it may be, for itself and its children; the limit there is then.
pub fn raise_limit() -> usize {
    let before = getrlimit(Resource::Nofile);
    let ceiling = before.maximum.unwrap_or(u64::MAX);
    // Some systems call the ceiling unlimited and still refuse large numbers.
    for wish in [ceiling, 1 << 20, 65_536, 24_576, 10_240] {
        let wish = wish.min(ceiling).min(1 << 20);
        if before.current.is_some_and(|current| current >= wish) {
            break;
        }
        let raised = Rlimit {
            current: Some(wish),
            maximum: before.maximum,
        };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            break;
        }
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(now).unwrap_or(1 << 20)
}

/// As many of the `wanted` connections as this many files are enough for: some are left for everything else.
#[must_use]
pub fn connections(wanted: usize, files: usize) -> usize {
    wanted.min(files - OTHERS.min(files / 2)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_files_are_left_for_everything_else() {
        assert_eq!(connections(50_000, 1_000_000), 50_000);
        assert_eq!(connections(50_000, 20_000), 19_500);
        assert_eq!(connections(50_000, 128), 64);
        assert_eq!(connections(50_000, 0), 1);
    }
}
