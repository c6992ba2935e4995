// Package declared keeps the indexes of a mesh in line with a file: it has agents install, upgrade
// and remove them, as `mesh install` does, and reports failures.
//
// One [Keeper] of a mesh works at a time, the one that holds the lease; the others wait. An expired
// lease cancels the work of its holder. Two that overlap for a moment do no harm: they ask for the
// same, or the later one asks again.
//
// An index that it installed has the digest of its entry in its record
// ([registry.IndexRecord.Managed]); it removes only those. An index with another digest, or with
// none because it was installed manually, is installed again from its entry. A broken entry or file
// changes nothing that runs.
//
// It never imports anything, never runs git, and reads no environment.
package declared
