// Composes the scripts from their parts. `scripts.rs`, the tests of the scripts and the benches include this file, each
// with its own path to the folder of the parts.

macro_rules! compose {
    ($dir:literal, acquire) => {
        compose!($dir; "common", "acquire_alone", "acquire", "fence", "grant")
    };
    ($dir:literal, release, $publish:literal) => {
        compose!($dir; "common", $publish, "release_alone", "release", "wake")
    };
    ($dir:literal, batch, $publish:literal) => {
        concat!(
            compose!($dir; "common", "check", $publish),
            // All acquires of a call share these: see `acquire.lua`.
            "local ttl, block, retention, now, newest, vacant\n",
            "local function acquire(lock, fence, holder)\n",
            compose!($dir; "acquire", "fence", "grant"),
            "end\nlocal function release(lock, holder)\n",
            compose!($dir; "release", "wake"),
            "end\n",
            compose!($dir; "batch"),
        )
    };
    ($dir:literal, acquire_all) => {
        concat!(
            compose!($dir; "common", "check"),
            "local ttl, block, retention, now, newest, vacant\n",
            "local function acquire(lock, fence, holder)\n",
            compose!($dir; "acquire", "fence", "grant"),
            "end\n",
            compose!($dir; "acquire_all"),
        )
    };
    ($dir:literal, force, $publish:literal) => {
        concat!(
            compose!($dir; "common", "check", $publish, "noted", "note"),
            "local function wake(lock)\n",
            compose!($dir; "wake"),
            "end\n",
            compose!($dir; "force"),
        )
    };
    ($dir:literal, annotate, $publish:literal) => {
        compose!($dir, run, [$publish], ["annotate"])
    };
    ($dir:literal, describe) => {
        compose!($dir, run, [], ["describe"])
    };
    ($dir:literal, renew) => {
        compose!($dir; "common", "check", "noted", "fence_keep", "renew")
    };
    ($dir:literal, steal, $publish:literal) => {
        compose!($dir, run, [$publish, "noted", "note"], ["steal", "fence", "steal_grant"])
    };
    ($dir:literal, want, $publish:literal) => {
        compose!($dir, run, [$publish, "noted", "note"], ["want"])
    };
    ($dir:literal, rw_force, $publish:literal) => {
        compose!($dir, run, [$publish, "rw_common", "rw_wake", "noted", "note"], ["rw_force"])
    };
    ($dir:literal, rw_renew) => {
        compose!($dir, run, ["rw_common", "noted", "fence_keep"], ["rw_renew"])
    };
    ($dir:literal, rw_acquire, $publish:literal) => {
        compose!($dir, run, [$publish, "rw_common", "rw_wake"], ["rw_acquire", "fence", "rw_grant"])
    };
    ($dir:literal, rw, $body:literal, $publish:literal) => {
        compose!($dir, run, [$publish, "rw_common", "rw_wake"], [$body])
    };
    ($dir:literal, rw, $body:literal) => {
        compose!($dir, run, ["rw_common"], [$body])
    };
    ($dir:literal, permits, $body:literal, $publish:literal) => {
        compose!($dir, run, [$publish, "permits_common", "permits_wake"], [$body])
    };
    ($dir:literal, permits, $body:literal) => {
        compose!($dir, run, ["permits_common"], [$body])
    };
    ($dir:literal, line_acquire, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["line_acquire"],
            // `acquire.lua` says what these are.
            "local ttl, block, retention, now, newest, vacant\n",
            "local function acquire(lock, fence, holder)\n",
            compose!($dir; "acquire", "fence", "grant"),
            "end\nlocal function wake(lock)\n",
            compose!($dir; "wake"),
            "end\n",
            compose!($dir, line_of)
        )
    };
    ($dir:literal, release_keep, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["release_keep"],
            "local function wake(lock)\n",
            compose!($dir; "wake"),
            "end\n"
        )
    };
    ($dir:literal, line_release, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["line_release"],
            "local now\nlocal function release(lock, holder)\n",
            compose!($dir; "release", "wake"),
            "end\n",
            compose!($dir, line_of)
        )
    };
    ($dir:literal, line_leave, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["line_leave"],
            "local now\nlocal function wake(lock)\n",
            compose!($dir; "wake"),
            "end\n",
            compose!($dir, line_of)
        )
    };
    ($dir:literal, line_inspect) => {
        compose!($dir, run, [], ["line_inspect"], "local now\n", compose!($dir, line_of))
    };
    ($dir:literal, line_of) => {
        concat!(
            "local function line_of(line, lapses, holder)\n",
            compose!($dir; "line_common"),
            "end\n",
        )
    };
    // Functions that the body calls, and the body, which is a function too.
    ($dir:literal, run, [$($part:literal),*], [$($body:literal),+] $(, $more:expr)*) => {
        concat!(
            compose!($dir; "common", "check" $(, $part)*),
            $($more,)*
            "local function run()\n",
            compose!($dir; $($body),+),
            "end\n",
            compose!($dir; "run"),
        )
    };
    ($dir:literal; $($part:literal),+) => {
        concat!($(include_str!(concat!($dir, $part, ".lua"))),+)
    };
}
