//! Transcripts of plain TCP that one run keeps and another takes.
//!
//! In a kernel of the rig a scenario takes seconds. So the oracle is asked on the host, once for
//! both devices, and in the kernel only where a transcript is another than on the host.

use std::path::{Path, PathBuf};

/// Folders of transcripts, by the scenarios' names.
#[derive(Default)]
pub struct Transcripts {
    /// Where those that were kept are taken from.
    pub from: Option<PathBuf>,
    /// Where they are kept.
    pub to: Option<PathBuf>,
}

impl Transcripts {
    /// Keeps one that passed. Where it cannot be kept the other run asks plain TCP itself.
    pub fn keep(&self, scenario: &str, transcript: &str) {
        let Some(file) = self.to.as_deref().map(|folder| file(folder, scenario)) else { return };
        let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(e) = made.and_then(|()| std::fs::write(&file, transcript)) {
            println!("no transcript in {}: {e}", file.display());
            let _ = std::fs::remove_file(&file);
        }
    }

    /// The one that was kept, if there is one.
    pub fn kept(&self, scenario: &str) -> Option<String> {
        std::fs::read_to_string(file(self.from.as_deref()?, scenario)).ok()
    }
}

fn file(folder: &Path, scenario: &str) -> PathBuf {
    folder.join(format!("{scenario}.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_taken_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("netacc-oracle-{}", std::process::id()));
        let both = Transcripts { from: Some(folder.clone()), to: Some(folder.clone()) };
        both.keep("data/peek", "[Server] recv 5\n");
        both.keep("data/silent", "");
        assert_eq!(both.kept("data/peek").as_deref(), Some("[Server] recv 5\n"));
        // Nothing said is a transcript, too.
        assert_eq!(both.kept("data/silent").as_deref(), Some(""));
        assert_eq!(both.kept("data/other"), None);
        let none = Transcripts::default();
        none.keep("data/other", "nowhere");
        assert_eq!(none.kept("data/peek"), None);
        let _ = std::fs::remove_dir_all(&folder);
    }
}
