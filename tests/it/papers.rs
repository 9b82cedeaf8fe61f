//! Certificates that tests make.

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

/// Certificates in a folder, as a file of settings names them.
pub(crate) struct Papers {
    pub(crate) folder: TempDir,
}

impl Papers {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::Builder::new().prefix("papers").tempdir().unwrap(),
        }
    }

    /// Makes a certificate for these names, with its key, in files that begin so. Answers it in binary.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) -> Vec<u8> {
        self.issue_that(file, names, |_| ())
    }

    pub(crate) fn issue_that(&self, file: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(self.path(&format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
        certificate.der().to_vec()
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}
