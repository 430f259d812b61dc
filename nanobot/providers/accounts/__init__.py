"""OAuth accounts instead of API keys: logins, stored tokens and their renewal, and the providers that use them."""
