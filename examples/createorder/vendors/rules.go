package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/samekey/samekey/samekeytest"
)

type rule = func(samekeytest.VendorRequest) samekeytest.VendorAnswer

// charge declines a card that is marked as declined, and charges any other card.
func charge(r samekeytest.VendorRequest) samekeytest.VendorAnswer {
	var payment struct {
		Declined bool `json:"declined"`
		Card     struct {
			Declined bool `json:"declined"`
		} `json:"card"`
	}
	// A card that is not an object, such as a token, is not marked.
	_ = json.Unmarshal(r.Body, &payment)
	if payment.Declined || payment.Card.Declined {
		return failure(http.StatusPaymentRequired, "card_declined", "the card was declined")
	}
	return samekeytest.VendorAnswer{
		Status: http.StatusCreated,
		Body:   fmt.Appendf(nil, `{"id":"ch_%d","status":"succeeded"}`, r.Call),
	}
}

// send accepts every mail.
func send(r samekeytest.VendorRequest) samekeytest.VendorAnswer {
	return samekeytest.VendorAnswer{
		Status: http.StatusAccepted,
		Body:   fmt.Appendf(nil, `{"id":"msg_%d","status":"queued"}`, r.Call),
	}
}

// required refuses a body without an identity: its effect could not be audited.
func required(name string, identity func([]byte) string, next rule) rule {
	return func(r samekeytest.VendorRequest) samekeytest.VendorAnswer {
		if identity(r.Body) != "" {
			return next(r)
		}
		a := failure(http.StatusBadRequest, "missing_"+name, "the body must be a JSON object with "+name)
		a.Forget = true
		return a
	}
}

func failure(status int, code, message string) samekeytest.VendorAnswer {
	body, _ := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message}})
	return samekeytest.VendorAnswer{Status: status, Body: body}
}
