//! Users by their names: what `/etc/passwd` says of them. No other source is asked: the library
//! would have to call the C library's in a program of another's, which may ask a server.

/// Where users have their names.
pub const PASSWD: &str = "/etc/passwd";

/// The number of the user of that name.
pub type Users<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// There are none with names.
pub const NO_USERS: Users<'static> = &|_| None;

/// The number that the text of [`PASSWD`] has for a name: the first line counts, as for the C
/// library.
pub fn number_in(passwd: &str, name: &str) -> Option<u32> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let number = line.split(':').nth(2)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| is_number && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_name_counts() {
        let text = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/:/x\nwww-data:x:34:1::/:/x\n\
                    cut:x\nempty:x::1\nminus:x:-1:1\nplus:x:+1:1\nlarge:x:4294967296:1\n:x:7:7\n";
        let of = |name| number_in(text, name);
        assert_eq!((of("root"), of("www-data")), (Some(0), Some(33)));
        for name in ["www", "cut", "empty", "minus", "plus", "large", "", "nobody", "0"] {
            assert_eq!(of(name), None, "{name}");
        }
        assert_eq!(number_in("a:x:5:5", "a"), Some(5), "no end of the line");
    }
}
