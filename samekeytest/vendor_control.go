package samekeytest

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const controlPath = "/_control/"

func isControl(path string) bool { return strings.HasPrefix(path, controlPath) }

func (v *Vendor) serveControl(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + strings.TrimPrefix(r.URL.Path, controlPath) {
	case "GET ledger":
		writeJSON(w, v.Ledger())
	case "GET open":
		v.serveOpen(w, r)
	case "GET faults":
		v.mu.Lock()
		plan := v.deck.plan
		plan.Next = append([]Fault{}, v.next...)
		v.mu.Unlock()
		writeJSON(w, plan)
	case "PUT faults":
		v.putFaults(w, r)
	case "POST hold":
		if r.URL.Query().Get("answers") == "true" {
			v.HoldAnswers()
		} else {
			v.Hold()
		}
		writeJSON(w, v.Counts())
	case "POST release":
		v.Release()
		writeJSON(w, v.Counts())
	default:
		write(w, refusal(http.StatusNotFound, "control", "there is GET ledger, GET open, GET faults, PUT faults, POST hold, POST release"))
	}
}

// serveOpen answers the counts as they were when enough calls were open (or
// enough effects made): a caller that kills its worker on this answer has so
// many calls in the air.
func (v *Vendor) serveOpen(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Has("at_least") || query.Has("effects") {
		within, err := time.ParseDuration(query.Get("within"))
		open, err2 := optionalInt(query.Get("at_least"))
		effects, err3 := optionalInt(query.Get("effects"))
		if err != nil || err2 != nil || err3 != nil {
			write(w, refusal(http.StatusBadRequest, "control", "want ?at_least=10&within=5s or ?effects=10&within=5s"))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		_ = v.WaitEffects(ctx, effects) // the counts tell
		_ = v.WaitOpen(ctx, open)
	}
	writeJSON(w, v.Counts())
}

func optionalInt(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.Atoi(s)
}

func (v *Vendor) putFaults(w http.ResponseWriter, r *http.Request) {
	var plan FaultPlan
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&plan)
	if err == nil {
		err = v.SetFaults(plan)
	}
	if err != nil {
		write(w, refusal(http.StatusBadRequest, "control", err.Error()))
		return
	}
	writeJSON(w, plan)
}

func writeJSON(w http.ResponseWriter, x any) {
	body, err := json.Marshal(x)
	if err != nil {
		write(w, refusal(http.StatusInternalServerError, "control", err.Error()))
		return
	}
	write(w, VendorAnswer{Status: http.StatusOK, Body: append(body, '\n')})
}

// serveLookup answers what the vendor remembers of a key or an identity.
func (v *Vendor) serveLookup(w http.ResponseWriter, r *http.Request) {
	key, identity := r.URL.Query().Get("key"), r.URL.Query().Get("identity")
	v.mu.Lock()
	v.lookups++
	rec, running := v.find(key, identity)
	v.mu.Unlock()
	switch {
	case key == "" && identity == "":
		write(w, refusal(http.StatusBadRequest, "lookup", "want ?key= or ?identity="))
	case rec != nil:
		w.Header().Set("Stored-Status", strconv.Itoa(rec.Answer.Status))
		write(w, VendorAnswer{Status: http.StatusOK, Header: rec.Answer.Header, Body: rec.Answer.Body})
	case running:
		write(w, refusal(http.StatusConflict, "key_in_flight", "a call with this key is still running"))
	default:
		write(w, refusal(http.StatusNotFound, "not_found", "the vendor has not acted on this"))
	}
}

// find returns the first decision of a key or an identity. v.mu is held.
func (v *Vendor) find(key, identity string) (rec *VendorRecord, running bool) {
	if key != "" {
		if state := v.keys[key]; state != nil {
			return state.done, state.running
		}
		return nil, false
	}
	for i := range v.effects {
		if v.effects[i].Identity == identity {
			return &v.effects[i], false
		}
	}
	for i := range v.declined {
		if v.declined[i].Identity == identity {
			return &v.declined[i], false
		}
	}
	for i := range v.calls {
		if c := &v.calls[i]; c.Identity == identity && c.Key != "" && v.keys[c.Key].running {
			return nil, true
		}
	}
	return nil, false
}
