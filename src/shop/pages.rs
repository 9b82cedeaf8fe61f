//! The shop's pages: plain forms, so that a person without JavaScript can buy.

use super::orders::Payment;

const STYLE: &str = "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:3rem auto;padding:0 1rem;color:#1b1b1f;background:#fff}\
    h1{line-height:1.2}button{font:inherit;padding:.7rem 1.4rem;min-height:44px;border:0;border-radius:.5rem;background:#0b57d0;color:#fff;cursor:pointer}\
    button.quiet{background:none;color:#0b57d0;text-decoration:underline}form{display:inline-block;margin:0 .5rem .5rem 0}\
    small{color:#5b5b66}@media(prefers-color-scheme:dark){body{color:#ececf1;background:#16161a}small{color:#a5a5b0}\
    button{background:#a8c7fa;color:#062e6f}button.quiet{color:#a8c7fa}}";

/// The sale.
pub(super) fn sale(user: &str, query: Option<&str>) -> String {
    let came_by = query.map_or_else(String::new, |query| {
        format!(
            "<p><small>The address you asked for came through the line unharmed: ?{}</small></p>",
            escape(query)
        )
    });
    frame(
        "Phone 42",
        &format!(
            "<h1>Phone 42</h1><p>You are in. A phone is yours once it is on hold for you; you then have a short time to pay.</p>\
             <form method=\"post\" action=\"/sale/claim\"><input type=\"hidden\" name=\"quantity\" value=\"1\">\
             <button>Buy a phone</button></form>{came_by}<p><small>Visitor {}</small></p>",
            escape(user)
        ),
    )
}

/// An open order.
pub(super) fn order(reservation: &str, units: &str, expires_s: u64) -> String {
    let (reservation, units) = (escape(reservation), escape(units));
    let until = i64::try_from(expires_s)
        .ok()
        .and_then(|second| jiff::Timestamp::from_second(second).ok());
    let until = until.map_or_else(|| "soon".to_owned(), |time| format!("until {}", time.strftime("%H:%M:%S UTC")));
    let field = format!("<input type=\"hidden\" name=\"reservation\" value=\"{reservation}\">");
    frame(
        "Your order",
        &format!(
            "<h1>On hold for you</h1><p>{units} phone, {until}. Pay before then, or it goes to the next in line.</p>\
             <form method=\"post\" action=\"/sale/pay\">{field}<button>Pay</button></form>\
             <form method=\"post\" action=\"/sale/cancel\">{field}<button class=\"quiet\">Give it back</button></form>\
             <p><small>Reservation {reservation}</small></p>"
        ),
    )
}

/// A settled order.
pub(super) fn settled(payment: Payment) -> String {
    let (title, words) = match payment {
        Payment::Paid => ("The phone is yours", "Thank you. It is paid for, and nobody else has it."),
        Payment::Refunded => (
            "Too late",
            "The time to pay was over and somebody else has this phone. You are paid back in full.",
        ),
        Payment::Cancelled => ("Given back", "Somebody else will be happy with it."),
        Payment::SoldAlready => ("Paid already", "This order is paid for and cannot be given back here."),
        Payment::Missing => ("No such order", "The gateway does not know this reservation."),
    };
    frame(
        title,
        &format!("<h1>{title}</h1><p>{words}</p><p><a href=\"/sale\">Back to the sale</a></p>"),
    )
}

fn frame(title: &str, content: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main>{content}</main></body></html>"
    )
}

/// Text, safe inside HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_visitors_send_is_escaped() {
        let html = sale("<b>", Some("x=\"><script>"));
        assert!(!html.contains("<script>") && !html.contains("<b>") && html.contains("x=&quot;&gt;&lt;script&gt;"));
    }

    #[test]
    fn an_order_can_be_paid_and_given_back_by_forms() {
        let html = order("r-1", "1", 1_800_000_000);
        assert_eq!(html.matches("name=\"reservation\" value=\"r-1\"").count(), 2);
        assert!(html.contains("08:00:00 UTC"), "{html}");
    }
}
