// Package failure makes the errors of calls that run in processes of the
// executor: what a worker reported, how it ended, what a call took too much of.
// Each says whether the tool's code had begun.
//
// The package must never decide: it is told what happened and puts it into words.
package failure
