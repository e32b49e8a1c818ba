//! The order of paths: `shm,rdma`, `rdma`, … or `tcp` alone.

use crate::stats::Path;
use core::fmt;

/// Which faster paths a connection may take, the preferred one first. Empty: none, every connection
/// stays on TCP.
///
/// [`Path::Tcp`] is never in it, since it is under every connection in any case.
///
/// ```
/// use netacc_control::{Path, config::Paths};
/// let paths = Paths::parse("rdma,shm")?;
/// assert_eq!(paths.first(), Some(Path::Rdma));
/// assert!(paths.contains(Path::Shm));
/// assert!(Paths::parse("tcp")?.is_empty());
/// # Ok::<(), &'static str>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paths {
    /// Each path at most once, none behind a `None`.
    order: [Option<Path>; Paths::MAX],
}

impl Paths {
    /// None: every connection stays on TCP.
    pub const TCP: Paths = Paths { order: [None; Paths::MAX] };
    const MAX: usize = 3;

    /// Parses a list. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Paths, &'static str> {
        let mut paths = Paths::TCP;
        let mut tcp = false;
        if text.trim().is_empty() {
            return Err("empty");
        }
        for name in text.split(',').map(str::trim) {
            if name.is_empty() {
                return Err("has a comma too many");
            }
            let path = Path::ALL.into_iter().find(|path| path.name() == name);
            match path {
                Some(Path::Tcp) if !tcp => tcp = true,
                Some(Path::Shm | Path::Rdma) if paths.contains(Path::Utcp) => {
                    return Err("names a path behind utcp, which would never be tried");
                }
                Some(path) if !paths.contains(path) && path != Path::Tcp => {
                    if let Some(slot) = paths.order.iter_mut().find(|slot| slot.is_none()) {
                        *slot = Some(path);
                    }
                }
                Some(_) => return Err("names a path twice"),
                None => return Err("not a list of paths"),
            }
        }
        if tcp && !paths.is_empty() {
            return Err("names tcp beside other paths");
        }
        Ok(paths)
    }

    /// The preferred path; `None`: every connection stays on TCP.
    pub const fn first(self) -> Option<Path> {
        let [first, ..] = self.order;
        first
    }

    /// The paths, the preferred one first.
    pub fn iter(self) -> impl Iterator<Item = Path> {
        self.order.into_iter().flatten()
    }

    /// Whether a connection may take that path; false for [`Path::Tcp`].
    pub fn contains(self, path: Path) -> bool {
        self.iter().any(|is| is == path)
    }

    /// Those of them that are among `others`, in this order.
    pub fn within(self, others: Paths) -> Paths {
        let mut kept = self.iter().filter(|path| others.contains(*path));
        Paths { order: core::array::from_fn(|_| kept.next()) }
    }

    /// Whether no path is faster than TCP.
    pub const fn is_empty(self) -> bool {
        self.first().is_none()
    }
}

impl Default for Paths {
    /// `shm,rdma`.
    fn default() -> Paths {
        Paths { order: [Some(Path::Shm), Some(Path::Rdma), None] }
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str(Path::Tcp.name());
        }
        let mut separator = "";
        for path in self.iter() {
            write!(f, "{separator}{}", path.name())?;
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept() {
        for (text, first, order) in [
            ("shm,rdma", Some(Path::Shm), vec![Path::Shm, Path::Rdma]),
            ("rdma,shm", Some(Path::Rdma), vec![Path::Rdma, Path::Shm]),
            ("shm,rdma,utcp", Some(Path::Shm), vec![Path::Shm, Path::Rdma, Path::Utcp]),
            ("utcp", Some(Path::Utcp), vec![Path::Utcp]),
            ("shm", Some(Path::Shm), vec![Path::Shm]),
            ("rdma", Some(Path::Rdma), vec![Path::Rdma]),
            ("tcp", None, vec![]),
        ] {
            let paths = Paths::parse(text).unwrap();
            assert_eq!(paths.first(), first, "{text}");
            assert!(paths.iter().eq(order.iter().copied()), "{text}");
            for path in Path::ALL {
                assert_eq!(paths.contains(path), order.contains(&path), "{text}");
            }
            assert_eq!(paths.is_empty(), text == "tcp");
            assert_eq!(paths.to_string(), text);
        }
        assert_eq!(Paths::parse(" rdma , shm ").unwrap().to_string(), "rdma,shm");
        assert_eq!(Paths::parse("shm,rdma").unwrap(), Paths::default());
    }

    #[test]
    fn what_is_left_keeps_its_order() {
        let of = |text| Paths::parse(text).unwrap();
        for (these, others, left) in [
            ("rdma,shm", "shm,rdma", "rdma,shm"),
            ("rdma,shm", "shm", "shm"),
            ("rdma", "shm", "tcp"),
            ("tcp", "shm,rdma", "tcp"),
            ("shm,rdma", "tcp", "tcp"),
        ] {
            assert_eq!(of(these).within(of(others)), of(left), "{these} {others}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, problem) in [
            ("", "empty"),
            (" ", "empty"),
            (",", "comma"),
            ("shm,", "comma"),
            ("shm,,rdma", "comma"),
            ("shm,shm", "twice"),
            ("rdma,shm,rdma", "twice"),
            ("tcp,tcp", "twice"),
            ("utcp,rdma", "behind utcp"),
            ("shm,utcp,rdma", "behind utcp"),
            ("utcp,shm,rdma", "behind utcp"),
            ("utcp,utcp", "twice"),
            ("utcp,tcp", "beside"),
            ("tcp,shm", "beside"),
            ("rdma,tcp", "beside"),
            ("xdp", "not a list of paths"),
            ("SHM", "not a list of paths"),
            ("shm rdma", "not a list of paths"),
            ("shm;rdma", "not a list of paths"),
            ("rdmax", "not a list of paths"),
        ] {
            let error = Paths::parse(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
