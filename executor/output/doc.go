// Package output is what tools print: records of it, the pipes that take what
// bypasses the worker's own streams, and the redactor that takes secrets out.
//
// A [Pipe] reads one descriptor of a process and hands over whole lines; a [Tail]
// remembers the end of a stream, for the error of a crash; a [Bucket] bounds what
// is passed on. The package must never decide whose output it is: it is told.
package output
