use ledger::GC_SETTINGS;
use linux::WantedVariables;

/// The environment variables of a process that advice and the deployment depend on. No other variable is ever read into a document.
pub const VARIABLES: WantedVariables = WantedVariables {
    // They select and tune the allocator, and start parts of the gem.
    with_value: &[
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
        "MALLOC_CONF",
        "RBLOAT_AUTO_TRIM",
        "RBLOAT_NATIVE_PRESSURE",
    ],
    // Some are set by the platform that started the process. A change of the others must not lose their present values.
    without_value: &[
        "DYNO",
        "INVOCATION_ID",
        "KUBERNETES_SERVICE_HOST",
        "MALLOC_ARENA_MAX",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TOP_PAD_",
        "MALLOC_TRIM_THRESHOLD_",
        "PS",
        "RUBYOPT",
        "container",
    ],
    // The longest name of Ruby 4.0 has 60 characters.
    settings: Some(GC_SETTINGS),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_environment_only_known_variables_are_kept_and_most_without_their_values() {
        let environment = "SECRET=x\0LD_PRELOADED=2\0LD_PRELOAD=a=b\0PATH=/bin\0odd\0DYNO=web.1\0RUBYOPT=-rsecret";
        let environment = format!("{environment}\0RUBY_GC_HEAP_INIT_SLOTS=4\x1b0\0RUBY_GC_\x1b=1");
        let kept = [
            ("LD_PRELOAD", "a=b"),
            ("DYNO", ""),
            ("RUBYOPT", ""),
            ("RUBY_GC_HEAP_INIT_SLOTS", "4 0"),
        ];
        let kept = kept.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(VARIABLES.of(&environment), kept);
    }
}
