//! Where the private server lives: its folder, the lock on it, its socket and its settings.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::EmbeddedFault;

/// The longest path a unix socket can have, on the systems we know (Linux 108 bytes, macOS 104, each with a NUL at its end).
const LONGEST_SOCKET: usize = 103;

/// The folder of a private server, ours alone for as long as this value lives.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    socket: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes the folder and locks it.
    pub(super) fn take(data_dir: &Path) -> Result<Self, EmbeddedFault> {
        make_folder(data_dir)?;
        let data_dir = data_dir.canonicalize().map_err(fault("cannot find", data_dir))?;
        let lock = take_lock(&data_dir)?;
        let folder = data_dir.join("redis");
        make_folder(&folder)?;
        // Whatever it was before, and whoever made it: nobody else may reach the socket or read the file.
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).map_err(fault("cannot close to others", &folder))?;
        let socket = place_socket(&folder)?;
        Ok(Self {
            folder,
            socket,
            _lock: lock,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.folder.join("redis.conf")
    }

    /// The socket as a URL, in which most characters of a path must be escaped.
    pub(super) fn url(&self) -> String {
        let mut url = "redis+unix://".to_owned();
        for byte in self.socket.as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
                url.push(char::from(*byte));
            } else {
                let _ = write!(url, "%{byte:02X}"); // writing to a String cannot fail
            }
        }
        url
    }

    /// Writes the server's settings: everything that matters is said, so that no other file and no changed default has a say.
    pub(super) fn write_config(&self, max_memory: u64) -> Result<(), EmbeddedFault> {
        let file = self.config_file();
        let text = settings(&self.folder, &self.socket, max_memory).ok_or_else(|| {
            let odd = io::Error::new(
                io::ErrorKind::InvalidInput,
                "its name has characters that a server's settings cannot have",
            );
            fault("cannot be used as a folder:", &self.folder)(odd)
        })?;
        std::fs::write(&file, text).map_err(fault("cannot write", &file))
    }
}

fn settings(folder: &Path, socket: &Path, max_memory: u64) -> Option<String> {
    let (folder, socket) = (quoted(folder)?, quoted(socket)?);
    Some(format!(
        "# Written by waitgate at each start: changes are lost.
port 0
unixsocket {socket}
unixsocketperm 700
dir {folder}
daemonize no
supervised no
loglevel notice
logfile \"\"
always-show-logo no
# Everything that was answered is in the file; a power cut may cost its last second.
appendonly yes
appendfsync everysec
no-appendfsync-on-rewrite no
aof-load-truncated yes
save \"\"
# When memory is full, writes are refused: no place in a line is ever thrown away.
maxmemory {max_memory}
maxmemory-policy noeviction
maxclients 1000
timeout 0
# A gateway that does not read its news is cut off, reads everything anew, and no memory is lost to it.
client-output-buffer-limit pubsub 64mb 16mb 60
client-output-buffer-limit normal 0 0 0
"
    ))
}

/// As the server's settings quote it; none for what they cannot say.
fn quoted(path: &Path) -> Option<String> {
    let path = path.to_str().filter(|path| !path.contains(['\n', '\r', '\0']))?;
    Some(format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\"")))
}

fn make_folder(folder: &Path) -> Result<(), EmbeddedFault> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(fault("cannot make the folder", folder))
}

fn take_lock(data_dir: &Path) -> Result<File, EmbeddedFault> {
    let file = data_dir.join("waitgate.lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&file);
    let lock = lock.map_err(fault("cannot open", &file))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(EmbeddedFault::InUse {
            folder: data_dir.display().to_string(),
        }),
        Err(TryLockError::Error(error)) => Err(fault("cannot lock", &file)(error)),
    }
}

/// The socket is in the folder, unless that path is too long for a socket: then in a private folder of its own, whose name is kept in the
/// file `socket` so that the next start finds it.
fn place_socket(folder: &Path) -> Result<PathBuf, EmbeddedFault> {
    let near = folder.join("redis.sock");
    if near.as_os_str().len() <= LONGEST_SOCKET {
        return Ok(near);
    }
    let record = folder.join("socket");
    if let Ok(kept) = std::fs::read_to_string(&record) {
        let kept = PathBuf::from(kept);
        // It is ours only while nobody else can have put something there.
        let ours = kept.parent().and_then(|parent| parent.symlink_metadata().ok());
        if ours.is_some_and(|ours| ours.is_dir() && ours.permissions().mode() & 0o777 == 0o700 && owned_by_us(&ours)) {
            return Ok(kept);
        }
    }
    for base in [std::env::temp_dir(), PathBuf::from("/tmp")] {
        let name = format!("waitgate-{:012x}", fastrand::u64(..) >> 16);
        let far = base.join(name);
        let socket = far.join("redis.sock");
        if socket.as_os_str().len() <= LONGEST_SOCKET {
            DirBuilder::new()
                .mode(0o700)
                .create(&far)
                .map_err(fault("cannot make the folder", &far))?;
            let text = socket.to_str().unwrap_or_default();
            std::fs::write(&record, text).map_err(fault("cannot write", &record))?;
            return Ok(socket);
        }
    }
    let long = io::Error::new(io::ErrorKind::InvalidInput, "too long for a socket, and so is every other place");
    Err(fault("cannot listen on", &near)(long))
}

fn owned_by_us(folder: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    folder.uid() == rustix::process::geteuid().as_raw()
}

fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EmbeddedFault {
    let path = path.display().to_string();
    move |source| EmbeddedFault::Folder { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_escaped_in_the_url_and_quoted_in_the_settings() {
        let folder = tempfile::Builder::new().prefix("way \"ö#%").tempdir().unwrap();
        let place = Place::take(folder.path()).unwrap();
        assert!(place.url().contains("/way%20%22%C3%B6%23%25"), "{}", place.url());
        let parsed = redis::parse_redis_url(&place.url()).unwrap();
        assert_eq!(parsed.to_file_path().unwrap(), place.socket());
        let text = settings(place.folder(), place.socket(), 0).unwrap();
        assert!(text.contains("/way \\\"ö#%"), "{text}");
    }

    #[test]
    fn a_long_path_gets_a_short_socket_and_finds_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(120));
        let socket = Place::take(&long).unwrap().socket().to_owned();
        assert!(socket.as_os_str().len() <= LONGEST_SOCKET && !socket.starts_with(&long));
        assert_eq!(Place::take(&long).unwrap().socket(), socket);
        std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
        let next = Place::take(&long).unwrap().socket().to_owned();
        assert_ne!(next, socket, "a folder that is gone is not trusted");
        std::fs::remove_dir_all(next.parent().unwrap()).unwrap();
    }
}
