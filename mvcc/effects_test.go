package mvcc

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
)

var someEffects = []Effect{
	{Key: []byte("a"), Value: []byte("v"), Version: 1},
	{Key: []byte("b\x00"), Value: []byte{}, Sub: 1, CreateRevision: 7, Version: 3, Lease: 5, OldLease: -1},
	{Key: []byte("c"), Sub: math.MaxUint32, Tombstone: true, OldLease: math.MinInt64},
	{Key: []byte("d"), Value: bytes.Repeat([]byte("x"), 300), CreateRevision: math.MaxInt64, Version: math.MaxInt64, Lease: -9},
	{Key: []byte("e"), Tombstone: true, Prior: Place{math.MaxInt64 - 1, math.MaxUint32}},
	{Key: []byte("f"), Version: 2, CreateRevision: 3, Prior: Place{Revision: 3}, Value: []byte{}},
}

func TestEffectsRoundTrip(t *testing.T) {
	for n := range len(someEffects) + 1 {
		b := AppendEffects([]byte("before"), someEffects[:n])
		if size := EffectsSize(someEffects[:n]); size < len(b)-6 {
			t.Errorf("EffectsSize is %d of %d bytes", size, len(b)-6)
		}
		got, err := DecodeEffects(b[6:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], someEffects[i]) {
				t.Errorf("got %+v, want %+v", got[i], someEffects[i])
			}
		}
		if len(got) != n {
			t.Errorf("%d effects, want %d", len(got), n)
		}
	}
}

func TestDamagedEffectsAreAnError(t *testing.T) {
	good := AppendEffects(nil, someEffects)
	for n := range len(good) {
		if _, err := DecodeEffects(good[:n]); !errors.Is(err, ErrCorruptEffects) {
			t.Fatalf("%d of %d bytes: %v", n, len(good), err)
		}
	}
	for name, b := range map[string][]byte{
		"one byte more":            append(bytes.Clone(good), 0),
		"newer format":             append([]byte{4}, good[1:]...),
		"span in format 2":         {2, 1, effectTombstone | effectSpan, 0, 1, 'k', 5},
		"end in format 2":          {2, 1, effectTombstone | effectSpanEnd, 0, 1, 'k', 1, 'l'},
		"end without a span":       {3, 1, effectTombstone | effectSpanEnd, 0, 1, 'k', 1, 'l'},
		"span that is no deletion": {3, 1, effectSpan, 0, 1, 'k', 5},
		"span with a lease":        {3, 1, effectTombstone | effectSpan | effectOldLease, 0, 1, 'k', 5, 1},
		"span of no keys":          {3, 1, effectTombstone | effectSpan, 0, 1, 'k', 0},
		"span that is empty":       {3, 1, effectTombstone | effectSpan | effectSpanEnd, 0, 1, 'k', 5, 1, 'k'},
		"span without a key":       {3, 1, effectTombstone | effectSpan, 0, 0, 5},
		"too many subs":            {3, 1, effectTombstone | effectSpan, 1, 1, 'k', 0xff, 0xff, 0xff, 0xff, 0xf},
		"prior in format 1":        {1, 1, effectPrior, 0, 1, 'k', 2, 1, 0, 0},
		"prior of a creation":      {2, 1, effectPrior, 0, 1, 'k', 1, 1, 0, 0},
		"prior at revision 0":      {2, 1, effectPrior, 0, 1, 'k', 2, 0, 0, 0},
		"too many for the bytes":   {1, 0xff, 0xff, 0xff, 0x7f, 0},
		"unknown flag":             {1, 1, 0x80, 0, 1, 'k', 1, 0},
		"no key":                   {1, 1, 0, 0, 0, 1, 0},
		"version 0":                {1, 1, 0, 0, 1, 'k', 0, 0},
		"lease of a tombstone":     {1, 1, effectTombstone | effectLease, 0, 1, 'k', 5},
		"create rev. of tombstone": {1, 1, effectTombstone | effectOldCreate, 0, 1, 'k', 5},
	} {
		if _, err := DecodeEffects(b); !errors.Is(err, ErrCorruptEffects) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEffectsOfTheFormatBefore: a log that an older version wrote is replayed.
func TestEffectsOfTheFormatBefore(t *testing.T) {
	b := AppendEffects(nil, someEffects[:4])
	b[0] = effectsFormatBefore
	got, err := DecodeEffects(b)
	if err != nil || !reflect.DeepEqual(got, someEffects[:4]) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func FuzzDecodeEffects(f *testing.F) {
	f.Add(AppendEffects(nil, nil))
	f.Add(AppendEffects(nil, someEffects))
	f.Add(AppendEffects(nil, someEffects[2:3]))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		effs, err := DecodeEffects(b)
		if err != nil {
			return
		}
		again, err := DecodeEffects(AppendEffects(nil, effs))
		if err != nil || len(again) != len(effs) {
			t.Fatalf("%x decodes to %+v, which does not round-trip: %v", b, effs, err)
		}
		for i := range effs {
			if !reflect.DeepEqual(again[i], effs[i]) {
				t.Fatalf("%+v became %+v", effs[i], again[i])
			}
			if rev := int64(math.MaxInt64); effs[i].CreateRevision <= rev {
				effs[i].check(rev) // what decodes can be applied
			}
		}
	})
}
