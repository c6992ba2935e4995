// Package failure makes the errors of calls that run in processes of the executor: reports of
// workers, ended processes, exceeded limits. Each says whether the tool's code had begun.
//
// The package must never decide: it only words decisions of its callers.
package failure
