-- Asks for the page as a browser does.
wrk.headers["Accept"] = "text/html"
