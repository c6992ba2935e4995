// Package wake has goroutines wake each other, and sleep. It must never start one.
package wake
