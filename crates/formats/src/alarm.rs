/// The reason for a snapshot.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// The control group has used most of its limit, and uses more and more.
    NearLimit,
    /// The control group met its limit, and the kernel had to reclaim memory.
    LimitHit,
    /// The control group grows so fast that it will soon meet its limit.
    FastGrowth,
    /// Processes of the control group wait for memory: the kernel reclaims what they use.
    Stalled,
    /// The kernel killed a process of the control group, and the process ended at that time.
    Killed,
}

impl Alarm {
    /// All alarms.
    pub const ALL: [Self; 5] =
        [Self::NearLimit, Self::LimitHit, Self::FastGrowth, Self::Stalled, Self::Killed];
}

/// A process of a control group.
#[derive(
    Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct GroupMember {
    /// The process.
    pub pid: i32,
    /// Its command line, or the beginning of it.
    pub command: String,
    /// Its RSS.
    pub rss_bytes: u64,
}
