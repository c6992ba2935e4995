package process

import (
	"cmp"
	"runtime/debug"

	"github.com/toolmesh/toolmesh/codec"
)

// Build is the build of a binary, as `mesh version --json` prints it.
type Build struct {
	Version    string `json:"version"`
	Commit     string `json:"commit"`
	Proto      int    `json:"proto"`
	NATSServer string `json:"nats_server"`
}

// ThisBuild returns the build of this binary: the linked values, else those that the Go tool
// recorded, else "dev" and "unknown".
func ThisBuild(version, commit string) Build {
	b := Build{Version: version, Commit: commit, Proto: codec.Proto}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/nats-io/nats-server/v2" {
				b.NATSServer = dep.Version
			}
		}
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && b.Commit == "" {
				b.Commit = s.Value
			}
		}
	}
	b.Version, b.Commit = cmp.Or(b.Version, "dev"), cmp.Or(b.Commit, "unknown")
	return b
}
