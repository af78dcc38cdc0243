use std::path::{Path, PathBuf};

use formats::TriedSetting;
use linux::arch;

/// A setting under which the command runs; ordered from the simplest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// glibc's malloc with its defaults.
    Default,
    /// glibc's malloc with two arenas.
    Arena2,
    /// jemalloc.
    Jemalloc,
    /// jemalloc with a thread that returns free memory, also while the program is idle.
    JemallocBackground,
    /// jemalloc that returns free memory after one second.
    JemallocDecay,
    /// jemalloc with two arenas.
    JemallocArena2,
    /// tcmalloc.
    Tcmalloc,
    /// mimalloc.
    Mimalloc,
    /// glibc's malloc, with `rbloat trim` once the work is done.
    Trim,
    /// glibc's malloc, with rbloat's gem, which trims by itself.
    Gem,
    /// A user's setting: its name, and environment variables with their values.
    Own(String, Vec<(String, String)>),
}

/// Changes of the environment that a setting makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to remove, since they belong to other settings.
    pub unset: Vec<&'static str>,
}

/// A library with malloc.
struct Library {
    /// Debian's package, as a requirement.
    package: &'static str,
    /// The names of the file, in order of preference.
    names: &'static [&'static str],
}

const JEMALLOC: Library =
    Library { package: "the package libjemalloc2", names: &["libjemalloc.so.2"] };
const TCMALLOC: Library = Library {
    package: "the package libtcmalloc-minimal4",
    names: &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
};
const MIMALLOC: Library = Library {
    package: "the package libmimalloc2.0",
    names: &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"],
};

/// The library folders of Debian and other distributions. Debian's have a folder for each CPU.
const FOLDERS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];

/// Variables of the settings. They are removed under every setting that does not set them.
const MADE_BY_SETTINGS: [&str; 4] =
    ["MALLOC_ARENA_MAX", "LD_PRELOAD", "MALLOC_CONF", "RBLOAT_AUTO_TRIM"];

impl Setting {
    /// The built-in settings, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Default,
        Self::Arena2,
        Self::Jemalloc,
        Self::JemallocBackground,
        Self::JemallocDecay,
        Self::JemallocArena2,
        Self::Tcmalloc,
        Self::Mimalloc,
        Self::Trim,
        Self::Gem,
    ];

    /// The settings that are compared unless others are named.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        let is_usual = |it: &Self| !matches!(it, Self::JemallocDecay | Self::JemallocArena2);
        Self::ALL.into_iter().filter(is_usual).collect()
    }

    /// The name in arguments, tables and JSON.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Own(name, _) => name,
            Self::Default => "default",
            Self::Arena2 => "arena2",
            Self::Jemalloc => "jemalloc",
            Self::JemallocBackground => "jemalloc-background",
            Self::JemallocDecay => "jemalloc-decay1s",
            Self::JemallocArena2 => "jemalloc-arena2",
            Self::Tcmalloc => "tcmalloc",
            Self::Mimalloc => "mimalloc",
            Self::Trim => "trim",
            Self::Gem => "gem",
        }
    }

    /// Returns the built-in setting with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// Returns the setting of a row of a comparison.
    #[must_use]
    pub fn of(part: &TriedSetting) -> Self {
        Self::by_name(&part.setting)
            .unwrap_or_else(|| Self::Own(part.setting.clone(), part.environment.clone()))
    }

    /// Returns the requirement of the setting, such as a Debian package; `None` if it has none.
    #[must_use]
    pub fn needs(&self) -> Option<&'static str> {
        match self {
            Self::Gem => Some("the gem rbloat"),
            _ => self.library().map(|library| library.package),
        }
    }

    /// The library with malloc that the setting preloads; `None` if it is glibc's or the user's.
    const fn library(&self) -> Option<Library> {
        match self {
            Self::Default | Self::Arena2 | Self::Trim | Self::Gem | Self::Own(..) => None,
            Self::Jemalloc
            | Self::JemallocBackground
            | Self::JemallocDecay
            | Self::JemallocArena2 => Some(JEMALLOC),
            Self::Tcmalloc => Some(TCMALLOC),
            Self::Mimalloc => Some(MIMALLOC),
        }
    }

    /// The value of MALLOC_CONF; `None` if the setting needs none.
    #[must_use]
    pub const fn malloc_conf(&self) -> Option<&'static str> {
        match self {
            Self::JemallocBackground => Some("background_thread:true"),
            Self::JemallocDecay => Some("dirty_decay_ms:1000"),
            Self::JemallocArena2 => Some("narenas:2"),
            _ => None,
        }
    }

    /// Returns the changes of the command's environment; `None` if the library is not installed, or no gem is given.
    /// `ruby_options` is the present value of RUBYOPT.
    #[must_use]
    pub fn environment(&self, gem: Option<&Path>, ruby_options: &str) -> Option<Environment> {
        let set = match self {
            Self::Own(_, variables) => variables.clone(),
            Self::Arena2 => vec![("MALLOC_ARENA_MAX".into(), "2".into())],
            Self::Gem => {
                let library = gem?.join("lib");
                let options = format!("{ruby_options} -I{} -rrbloat/core", library.display());
                vec![
                    ("RUBYOPT".into(), options.trim().to_owned()),
                    ("RBLOAT_AUTO_TRIM".into(), "1".into()),
                ]
            }
            _ => match self.library() {
                None => vec![],
                Some(library) => {
                    let path = library.names.iter().find_map(|name| find(name))?;
                    let preload = ("LD_PRELOAD".into(), path.to_string_lossy().into_owned());
                    let conf = self.malloc_conf().map(|conf| ("MALLOC_CONF".into(), conf.into()));
                    [Some(preload), conf].into_iter().flatten().collect()
                }
            },
        };
        Some(Environment { set, unset: MADE_BY_SETTINGS.to_vec() })
    }
}

fn find(library: &str) -> Option<PathBuf> {
    let folders = FOLDERS.iter().map(Path::new);
    let mut paths = folders.flat_map(|folder| {
        [folder.join(arch::LIBRARY_TRIPLET).join(library), folder.join(library)]
    });
    paths.find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for setting in Setting::ALL {
            assert_eq!(Setting::by_name(setting.name()).as_ref(), Some(&setting));
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
        assert_eq!(gem.set[0].1, "-W0 -I/gem/lib -rrbloat/core");
        assert_eq!(Setting::Gem.environment(None, ""), None);
    }

    #[test]
    fn a_users_own_setting_is_what_was_tried() {
        let environment = vec![("MALLOC_ARENA_MAX".into(), "1".into()), ("X".into(), "a b".into())];
        let part = TriedSetting { setting: "arena1".into(), environment: environment.clone() };
        let own = Setting::of(&part);
        assert_eq!(own.name(), "arena1");
        assert_eq!(own.environment(None, "-W0").unwrap().set, environment);
        assert!(own > Setting::Gem);
        let part = TriedSetting { setting: "trim".into(), environment: vec![] };
        assert_eq!(Setting::of(&part), Setting::Trim);
    }
}
