package process

import "runtime/debug"

// gcPercent is the garbage collector's pace of a process that serves a mesh.
// Little is alive in one and much passes through: at Go's pace of 100 an agent
// with 10 MB alive collects many times a second under load; decision 016 has
// what that costs.
const (
	gcDefault = 100
	gcPercent = 400
)

// Pace sets the garbage collector's pace, unless GOGC has set another.
func Pace() {
	if before := debug.SetGCPercent(gcPercent); before != gcDefault {
		debug.SetGCPercent(before)
	}
}
