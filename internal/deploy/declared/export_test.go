package declared

import "time"

// SetHold sets how long the lease is relied on after a renewal.
func (k *Keeper) SetHold(d time.Duration) { k.holdsFor = d }

// SetPace sets how often the file is looked at, and the delay before a failed entry's first retry.
func (k *Keeper) SetPace(look, retry time.Duration) { k.lookEvery, k.retryFirst = look, retry }
