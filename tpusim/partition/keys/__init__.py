"""The keys of a plan, group by group: what each may be, and how it prints."""
