use std::path::{Path, PathBuf};

/// What the work may run under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// glibc's malloc as it comes.
    Default,
    /// glibc's malloc with two arenas.
    Arena2,
    /// jemalloc.
    Jemalloc,
    /// tcmalloc.
    Tcmalloc,
    /// mimalloc.
    Mimalloc,
    /// glibc's malloc, and `rbloat trim` once the work is done.
    Trim,
    /// glibc's malloc, and rbloat's gem, which trims by itself.
    Gem,
}

/// Changes of the environment that a setting makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to take away, since another setting would make them.
    pub unset: Vec<&'static str>,
}

/// Where Debian and others have libraries.
const FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
];

impl Setting {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Default,
        Self::Arena2,
        Self::Jemalloc,
        Self::Tcmalloc,
        Self::Mimalloc,
        Self::Trim,
        Self::Gem,
    ];

    /// Its name in arguments, tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Arena2 => "arena2",
            Self::Jemalloc => "jemalloc",
            Self::Tcmalloc => "tcmalloc",
            Self::Mimalloc => "mimalloc",
            Self::Trim => "trim",
            Self::Gem => "gem",
        }
    }

    /// The setting of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// How a user takes it.
    #[must_use]
    pub const fn how(self) -> &'static str {
        match self {
            Self::Default => "change nothing",
            Self::Arena2 => "set MALLOC_ARENA_MAX=2",
            Self::Jemalloc => "set LD_PRELOAD to libjemalloc.so.2",
            Self::Tcmalloc => "set LD_PRELOAD to libtcmalloc_minimal.so.4",
            Self::Mimalloc => "set LD_PRELOAD to libmimalloc.so.2",
            Self::Trim => "run `rbloat trim PID` after such work",
            Self::Gem => "add the gem rbloat and set RBLOAT_AUTO_TRIM=1",
        }
    }

    /// What it needs, a Debian package mostly; `None` where that is nothing.
    #[must_use]
    pub const fn needs(self) -> Option<&'static str> {
        match self {
            Self::Default | Self::Arena2 | Self::Trim => None,
            Self::Jemalloc => Some("the package libjemalloc2"),
            Self::Tcmalloc => Some("the package libtcmalloc-minimal4"),
            Self::Mimalloc => Some("the package libmimalloc2.0"),
            Self::Gem => Some("the gem's folder (--gem FOLDER)"),
        }
    }

    /// The library that it loads, by its names in order of preference.
    const fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Jemalloc => &["libjemalloc.so.2"],
            Self::Tcmalloc => &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
            Self::Mimalloc => &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"],
            _ => &[],
        }
    }

    /// What it changes in the environment of the work; `None` where a library is not installed, or no gem is
    /// given. `ruby_options` is the RUBYOPT that there is already.
    #[must_use]
    pub fn environment(self, gem: Option<&Path>, ruby_options: &str) -> Option<Environment> {
        // What another setting would be must not be there by chance.
        let unset = vec!["MALLOC_ARENA_MAX", "LD_PRELOAD", "RBLOAT_AUTO_TRIM"];
        let set = match self {
            Self::Default | Self::Trim => vec![],
            Self::Arena2 => vec![("MALLOC_ARENA_MAX".into(), "2".into())],
            Self::Jemalloc | Self::Tcmalloc | Self::Mimalloc => {
                let library = self.libraries().iter().find_map(|name| find(name))?;
                vec![("LD_PRELOAD".into(), library.to_string_lossy().into_owned())]
            }
            Self::Gem => {
                let library = gem?.join("lib");
                let options = format!("{ruby_options} -I{} -rrbloat", library.display());
                vec![
                    ("RUBYOPT".into(), options.trim().to_owned()),
                    ("RBLOAT_AUTO_TRIM".into(), "1".into()),
                ]
            }
        };
        Some(Environment { set, unset })
    }
}

fn find(library: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(library)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for setting in Setting::ALL {
            assert_eq!(Setting::by_name(setting.name()), Some(setting));
        }
        assert_eq!(Setting::by_name("ptmalloc"), None);
    }

    #[test]
    fn no_setting_lets_another_one_through() {
        for setting in Setting::ALL {
            let Some(environment) = setting.environment(Some(Path::new("/gem")), "-W0") else {
                continue;
            };
            for (name, _) in &environment.set {
                let is_own = environment.unset.contains(&name.as_str()) || name == "RUBYOPT";
                assert!(is_own, "{name}");
            }
        }
        let gem = Setting::Gem.environment(Some(Path::new("/gem")), "-W0").unwrap();
        assert_eq!(gem.set[0].1, "-W0 -I/gem/lib -rrbloat");
        assert_eq!(Setting::Gem.environment(None, ""), None);
    }
}
