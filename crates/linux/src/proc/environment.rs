use crate::text::one_line;

/// The longest name and value of a setting that is kept.
const MAX_SETTING: usize = 64;

/// The environment variables that a caller wants to know. No others are kept, since their values may be secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WantedVariables {
    /// The names of variables with their values.
    pub with_value: &'static [&'static str],
    /// The names of variables without their values, which may be secret.
    pub without_value: &'static [&'static str],
    /// The beginning of the names of settings: variables with short values that are no secret. They have capital letters, digits
    /// and underscores only.
    pub settings: Option<&'static str>,
}

impl WantedVariables {
    /// Returns the wanted variables of an environment.
    #[must_use]
    pub fn of(self, environment: &str) -> Vec<(String, String)> {
        let keep = |(name, value): (&str, &str)| {
            let value = match name {
                _ if self.with_value.contains(&name) => value.to_owned(),
                _ if self.without_value.contains(&name) => String::new(),
                _ if self.is_setting(name) => one_line(value).chars().take(MAX_SETTING).collect(),
                _ => return None,
            };
            Some((name.to_owned(), value))
        };
        environment
            .split('\0')
            .filter_map(|variable| variable.split_once('='))
            .filter_map(keep)
            .collect()
    }

    /// Returns true for the name of a setting. It is shown, so it has no characters that such names never have.
    fn is_setting(self, name: &str) -> bool {
        let is_plain = |byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_');
        name.len() <= MAX_SETTING
            && self.settings.is_some_and(|beginning| name.starts_with(beginning))
            && name.bytes().all(is_plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: WantedVariables = WantedVariables {
        with_value: &["LIBRARY"],
        without_value: &["MARK", "OPTIONS"],
        settings: Some("SET_"),
    };

    #[test]
    fn of_the_environment_only_wanted_variables_are_kept_and_most_without_their_values() {
        let environment = "SECRET=x\0LIBRARY_B=2\0LIBRARY=a=b\0PATH=/bin\0odd\0MARK=web.1\0OPTIONS=-rsecret\0\
                           SET_SLOTS=4\x1b0\0SET_\x1b=1";
        let kept = [("LIBRARY", "a=b"), ("MARK", ""), ("OPTIONS", ""), ("SET_SLOTS", "4 0")];
        let kept = kept.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(WANTED.of(environment), kept);
        assert_eq!(WantedVariables::default().of(environment), []);
    }
}
