//! The gem that a file belongs to, by its path.

/// A gem, or another group of files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gem {
    /// Its name; in parentheses for groups of files that are no gem.
    pub name: String,
    /// Its version with its platform, or its commit, for Bundler's clones. `None` if neither is in the path.
    pub version: Option<String>,
}

/// Methods that the interpreter has in Ruby. The path of RubyGems' `require` is within these brackets, too.
const INTERNAL: &str = "<internal:";

impl Gem {
    /// The name of the group of files that belong neither to a gem nor to Ruby itself.
    pub const APPLICATION: &str = "(application)";

    /// The gem of the file at `path`.
    #[must_use]
    pub fn of(path: Option<&str>) -> Self {
        let Some(path) = path else { return Self::group("(unknown)") };
        let (path, is_internal) = match path.strip_prefix(INTERNAL) {
            Some(path) => (path.trim_end_matches('>'), true),
            None => (path, false),
        };
        let folders: Vec<&str> = path.split('/').collect();
        if let Some(gem) = installed(&folders).or_else(|| packaged(&folders)) {
            return gem;
        }
        Self::group(match path {
            _ if is_of_ruby(&folders) => "(standard library)",
            _ if is_internal => "(internal)",
            _ if path.starts_with("(eval") => "(eval)",
            _ => Self::APPLICATION,
        })
    }

    /// Returns true if the name is certainly a gem's. Folders of vendor_ruby are named after features.
    #[must_use]
    pub fn is_gem(&self) -> bool {
        self.version.is_some()
    }

    /// Returns true for files that belong neither to a gem nor to Ruby itself, and were not made at run time.
    #[must_use]
    pub fn is_application(&self) -> bool {
        self.name == Self::APPLICATION
    }

    /// Returns true for files of a gem, or of Ruby itself.
    #[must_use]
    pub fn is_library(&self) -> bool {
        !self.is_application() && !self.name.starts_with("(eval")
    }

    fn group(name: &str) -> Self {
        Self { name: name.to_owned(), version: None }
    }
}

/// The gem in `gems/NAME-VERSION`, a folder of RubyGems, or `bundler/gems/NAME-COMMIT`. A gem may have others within
/// it, so the last such folder counts.
fn installed(folders: &[&str]) -> Option<Gem> {
    let mut places = (0..folders.len().saturating_sub(2)).rev().filter(|&at| folders[at] == "gems");
    places.find_map(|at| {
        let is_bundlers = at > 0 && folders[at - 1] == "bundler";
        let (name, version) = match by_version(folders[at + 1]) {
            None if is_bundlers => by_commit(folders[at + 1])?,
            versioned => versioned?,
        };
        Some(Gem { name: name.to_owned(), version: Some(version.to_owned()) })
    })
}

/// The name and the version in `NAME-VERSION` or `NAME-VERSION-PLATFORM`. Names may contain hyphens, and platforms
/// numbers.
fn by_version(folder: &str) -> Option<(&str, &str)> {
    let cuts = || folder.match_indices('-').map(|(at, _)| (&folder[..at], &folder[at + 1..]));
    let first = |rest: &str| rest.split('-').next().unwrap_or_default().to_owned();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let is_version = |part: &str| {
        let mut parts = part.split('.');
        let starts_with_number = parts.next().is_some_and(is_number);
        let mut is_plain =
            |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_alphanumeric());
        let mut rest = parts.peekable();
        starts_with_number && rest.peek().is_some() && rest.all(&mut is_plain)
    };
    let mut dotted = cuts().filter(|(name, rest)| !name.is_empty() && is_version(&first(rest)));
    let mut plain = cuts().filter(|(name, rest)| !name.is_empty() && is_number(&first(rest)));
    dotted.next().or_else(|| plain.next())
}

/// The name and the commit in `NAME-COMMIT`.
fn by_commit(folder: &str) -> Option<(&str, &str)> {
    const MIN_DIGITS: usize = 7;
    let (name, commit) = folder.rsplit_once('-')?;
    let is_commit = commit.len() >= MIN_DIGITS && commit.bytes().all(|it| it.is_ascii_hexdigit());
    (is_commit && !name.is_empty()).then_some((name, commit))
}

/// The first file or folder in `vendor_ruby` or `site_ruby`: there distributions and RubyGems' own updates put the
/// libraries of gems, without versions.
fn packaged(folders: &[&str]) -> Option<Gem> {
    let at = folders.iter().rposition(|it| ["vendor_ruby", "site_ruby"].contains(it))?;
    let mut inside = folders[at + 1..].iter();
    let first = inside.find(|folder| !is_release(folder))?;
    let name = first.strip_suffix(".rb").unwrap_or(first);
    (!name.is_empty()).then(|| Gem::group(name))
}

/// Returns true for `ruby/3.1.0/...`.
fn is_of_ruby(folders: &[&str]) -> bool {
    folders.windows(3).any(|it| it[0] == "ruby" && is_release(it[1]))
}

/// Returns true for the name of a folder of one Ruby release: `3.1.0`, and `4.1.0+4` of one in development.
fn is_release(folder: &str) -> bool {
    let folder = folder.split_once('+').map_or(folder, |(release, _)| release);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    folder.split('.').count() == 3 && folder.split('.').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_the_gem() {
        for (path, name, version) in [
            ("/usr/local/bundle/gems/rouge-4.1.2/lib/rouge.rb", "rouge", Some("4.1.2")),
            ("/var/lib/gems/3.1.0/gems/net-http2-0.18.5/lib/a/b.rb", "net-http2", Some("0.18.5")),
            (
                "/app/vendor/bundle/ruby/3.3.0/gems/nokogiri-1.16.0-x86_64-linux/lib/nokogiri.rb",
                "nokogiri",
                Some("1.16.0-x86_64-linux"),
            ),
            (
                "/r/gems/sass-embedded-1.70.0.rc1-arm64-darwin-22/lib/sass.rb",
                "sass-embedded",
                Some("1.70.0.rc1-arm64-darwin-22"),
            ),
            ("/r/gems/tiny-7/lib/tiny.rb", "tiny", Some("7")),
            (
                "/b/ruby/3.1.0/bundler/gems/rails-4f3a2b1c9d8e/activesupport/lib/x.rb",
                "rails",
                Some("4f3a2b1c9d8e"),
            ),
            (
                "/usr/share/rubygems-integration/all/gems/rake-13.0.6/lib/rake.rb",
                "rake",
                Some("13.0.6"),
            ),
            ("/home/me/gems/shop-2.0/vendor/gems/rack-3.0.1/lib/rack.rb", "rack", Some("3.0.1")),
            ("/usr/lib/ruby/vendor_ruby/active_record/base.rb", "active_record", None),
            ("/usr/lib/ruby/vendor_ruby/mail.rb", "mail", None),
            ("/usr/local/lib/ruby/site_ruby/3.3.0/rubygems/version.rb", "rubygems", None),
            (
                "<internal:/usr/lib/ruby/vendor_ruby/rubygems/core_ext/kernel_require.rb>",
                "rubygems",
                None,
            ),
            ("/usr/lib/ruby/3.1.0/set.rb", "(standard library)", None),
            ("/opt/ruby/lib/ruby/3.4.0/x86_64-linux/rbconfig.rb", "(standard library)", None),
            ("/opt/ruby/lib/ruby/4.1.0+4/json.rb", "(standard library)", None),
            ("/opt/ruby/lib/ruby/site_ruby/4.1.0+4/fiddle/import.rb", "fiddle", None),
            ("<internal:kernel>", "(internal)", None),
            ("(eval)", "(eval)", None),
            ("(eval at /app/a.rb:3)", "(eval)", None),
            ("-e", "(application)", None),
            ("/app/models/user.rb", "(application)", None),
            ("/app/gems/mine/lib/mine.rb", "(application)", None),
            ("/app/gems/rack-3.0.1", "(application)", None),
            ("/app/gems/-1.0/a.rb", "(application)", None),
            ("/app/gems/a-b/c.rb", "(application)", None),
            ("/app/vendor_ruby", "(application)", None),
            ("", "(application)", None),
        ] {
            let expected = Gem { name: name.into(), version: version.map(str::to_owned) };
            assert_eq!(Gem::of(Some(path)), expected, "{path}");
            assert!(!expected.is_gem() || !name.starts_with('('), "{path}");
        }
        assert_eq!(Gem::of(None).name, "(unknown)");
    }
}
