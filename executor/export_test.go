package executor

import "github.com/toolmesh/toolmesh/executor/internal/sandbox"

// SetLevels has processes be kept together in these ways only, best first.
func (o *Options) SetLevels(levels ...sandbox.Level) { o.levels = levels }

// Watched leaves limits to the watchdog, even if there are control groups.
func (o *Options) Watched(alone bool) *Options {
	o.watched = alone
	return o
}
