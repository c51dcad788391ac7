//! Pure functions: must a request be sent, and what does a reply teach?
