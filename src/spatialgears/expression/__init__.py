"""Stage A (section 3.1): gene panel, views of profiles, and the domain-invariant encoder f_theta."""
