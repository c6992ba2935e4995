// Package retry has calls that found every node full look again: soon, then less often,
// and at once when one of those that they belong together with has ended. It decides
// nothing about calls that failed for another reason.
package retry
